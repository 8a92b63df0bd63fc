"""A disk that LC and BE share and whose rate somebody else provisioned, a database as LC, and a bulk writer as BE."""
