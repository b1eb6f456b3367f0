"""Fine-tuning: adapters on frozen weights, trained on labeled texts."""
