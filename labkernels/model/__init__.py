"""From rows to advice: closed form, fit, validation, projection, advisor."""
