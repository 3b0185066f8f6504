"""Convolutional models of four libraries and of physics: do they run on ranks, and equal one process?"""
