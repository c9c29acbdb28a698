"""An MCP server over standard input and output, which writes down each call: python shop_server.py LOG."""

from __future__ import annotations

import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("shop", log_level="CRITICAL")


@server.tool()
def price(item: str) -> int:
    """Return the price of an item."""
    with Path(sys.argv[1]).open("a") as log:
        log.write(f"price {item}\n")
    return len(item)


if __name__ == "__main__":
    server.run()
