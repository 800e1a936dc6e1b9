"""The page as the visitor sees it, drawn with nicegui."""
