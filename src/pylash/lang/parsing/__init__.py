"""From text to a tree: tokens, then statements and expressions, then what is wrong with them."""
