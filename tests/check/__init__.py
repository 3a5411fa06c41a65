"""The checker against histories whose verdict is known."""
