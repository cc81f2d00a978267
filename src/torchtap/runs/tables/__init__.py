"""A run as rows: ``table`` per site, ``module_table`` per module, ``statistics_rows`` for SQL.

``columns`` says how each number is written, ``table_text`` what a page shows of a long table.
``statistics_columns`` has the rows for SQL as columns, ``lazy_table`` hands them to duckdb.
"""
