"""What a data set of a sweep says: tables, figures, a forest, and a page that shows them."""
