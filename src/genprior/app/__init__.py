"""The web page: ``genprior serve``.

``race.py``, ``queue.py`` and their neighbours are the job, plain Python without a browser; ``view/`` draws it with nicegui;
``server.py`` puts both on a port.
"""
