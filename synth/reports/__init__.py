"""What people read: text reports, HTML pages, plots."""
