"""Plan → program → text: all numbers and names are decided before the templates write them."""
