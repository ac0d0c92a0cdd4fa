"""The dashboard: pages for a browser that show a node and change it. The server makes them; nothing comes from
outside."""
