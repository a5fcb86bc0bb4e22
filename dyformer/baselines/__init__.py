"""Methods with which DyFormer is compared; none imports another."""
