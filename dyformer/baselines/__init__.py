"""Methods that DyFormer is compared with; none knows another."""
