"""Four generators from packages of others, opened with modules of our own; their archives are downloaded when asked for."""

from genprior.lab.third_party.archives import default_folder, find_archive
from genprior.lab.third_party.download import download_archive
from genprior.lab.third_party.opening import open_third_party
from genprior.lab.third_party.packages import PACKAGES, Package

__all__ = ["PACKAGES", "Package", "default_folder", "download_archive", "find_archive", "open_third_party"]
