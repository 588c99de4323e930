"""Reports of suites: statistics, tables, figures, pages."""
