"""HTML pages and fragments of plans, with their styles and scripts."""
