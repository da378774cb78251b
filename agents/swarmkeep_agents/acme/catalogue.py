"""The catalogue of Acme. All of it is made up."""

import re
from dataclasses import dataclass
from typing import Any

_WORD = re.compile(r"[^\W_]+(?:-[^\W_]+)*")


@dataclass(frozen=True)
class Product:
    """One thing in the catalogue; `known_as` holds more words that people use for it. Prices are in euros."""

    item_id: str
    name: str
    known_as: str
    price: float
    warranty_months: int
    in_stock: bool = True

    @property
    def words(self) -> frozenset[str]:
        return _split_words(f"{self.item_id} {self.name} {self.known_as}")

    def describe(self) -> dict[str, Any]:
        """What customers are told of it."""
        return {
            "item_id": self.item_id,
            "name": self.name,
            "price": self.price,
            "in_stock": self.in_stock,
            "warranty_months": self.warranty_months,
        }


CATALOGUE = (
    Product("TENT-2", "Moorland two-person tent", "shelter", 189.0, 24),
    Product("LAMP-1", "Hut lantern", "lamp light", 24.5, 12),
    Product("STOVE-3", "Fell gas stove", "cooker burner", 59.0, 24),
    Product("BAG-45", "Cairn backpack", "bag rucksack", 98.0, 36),
    Product("BOOT-7", "Scree walking boots", "shoes", 129.0, 6),
    Product("KETTLE-4", "Tarn kettle", "pot", 18.0, 12, in_stock=False),
)


def find_products(text: str) -> list[Product]:
    """The products that a text speaks of, by item id, name or another word for them; the best match first."""
    words = _split_words(text)
    scored = [(len(words & product.words), product) for product in CATALOGUE]
    return [product for score, product in sorted(scored, key=lambda pair: -pair[0]) if score]


def explain_unknown(text: str) -> str:
    """The answer where nothing matches a text."""
    known = ", ".join(f"{product.item_id} ({product.name})" for product in CATALOGUE)
    return f"Acme has no item that fits {text!r}. There are {known}."


def format_euros(amount: float) -> str:
    return f"{amount:.2f} euros"


def _split_words(text: str) -> frozenset[str]:
    return frozenset(word.removesuffix("s") for word in _WORD.findall(text.casefold()))
