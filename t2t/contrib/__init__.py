"""Optional methods that few runs need; rows of the trunk's tables name them, and only such a row imports them."""
