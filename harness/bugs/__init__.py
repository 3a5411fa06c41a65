"""Known public bugs of the hand-off, each as a scenario that a mutant fails and the hardened reference passes."""
