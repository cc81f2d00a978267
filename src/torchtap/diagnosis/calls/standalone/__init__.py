"""Runs and reads held calls with torch alone; an exported script is made of these files' text."""
