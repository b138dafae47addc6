"""`seckill orders`."""

import typer

orders = typer.Typer(help="Orders, and the events that leave about them.", no_args_is_help=True)
