"""Fine-tuning: adapters beside frozen weights, trained on labelled texts."""
