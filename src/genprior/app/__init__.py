"""The web page: ``genprior serve``.

``race.py``, ``queue.py`` and the other modules here run the solvers, without a browser; ``view/`` draws the page with nicegui;
``server.py`` serves it.
"""
