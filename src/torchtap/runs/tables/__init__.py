"""A run as rows: ``table`` per site, ``modules`` per module, ``statistics_rows`` for files and SQL.

``columns`` says how each number is written, ``text`` what a page shows of a long table.
``statistics_columns`` has the rows for SQL as columns, ``lazy_table`` hands them to duckdb.
"""
