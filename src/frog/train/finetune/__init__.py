"""Fine-tuning: adapters on frozen weights, trained on labelled texts."""
