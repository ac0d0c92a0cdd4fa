"""The dashboard: pages that show a node and change it. The node makes them; they load nothing from other sites."""
