"""What the visitor sees, drawn with nicegui."""
