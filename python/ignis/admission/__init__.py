"""Who comes first, and what a sequence reserves before it runs."""

from ignis.admission.rank import Rank, RequestClass
from ignis.admission.reservation import NeverFits, Reservation, Room, reserve

__all__ = ["Rank", "RequestClass", "NeverFits", "Reservation", "Room", "reserve"]
