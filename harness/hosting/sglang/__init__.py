"""SGLang's own hand-off, hosted: how a release is loaded, what is answered for its configuration, and what is ours beside it."""
