"""Stub"""
class Giver:
    def __init__(self, holder): pass
    def find(self, caller, payload): raise NotImplementedError
    def take(self, caller, payload): raise NotImplementedError
def pull(holder, task, patience): raise NotImplementedError
