"""Messages that wait to be sent, and the tasks that send them."""
