"""Commands that make, check, run or show plans."""
