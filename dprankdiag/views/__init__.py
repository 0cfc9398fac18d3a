"""Diagnosis and bundle tables to something read: text, JSON and more; opens no files, judges nothing."""
