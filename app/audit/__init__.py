"""Audits: do the numbers and the orders agree, and are the orders that were there still there?"""
