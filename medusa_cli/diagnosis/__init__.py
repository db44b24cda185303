"""What `medusa doctor` and `medusa inspect` find out."""
