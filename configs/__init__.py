"""Published settings, one YAML file each: for `alignattn finetune --config`, and what tables are filled with."""
