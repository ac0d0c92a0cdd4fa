"""The dashboard: pages for a browser that show a node and change it. The node makes them; they load nothing from other
sites."""
