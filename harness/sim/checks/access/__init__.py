"""Rules about users: who was served, judged by a second implementation of users, roles and rights."""
