"""Detectors, and models with learned queries, written out as their papers and public code have them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models_survey.entry import Entry

IMAGES = (2, 3, 32, 32)


def conv(ins: int, outs: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """A convolution, a batch norm and a SiLU."""
    layer = nn.Conv2d(ins, outs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outs), nn.SiLU(inplace=True))


class Backbone(nn.Module):
    """Two maps of a quarter and an eighth of the image's extents, and a feature pyramid over them."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, width, 3, 2), conv(width, width, 3, 2))
        self.down = conv(width, 2 * width, 3, 2)
        self.sides = nn.ModuleList([nn.Conv2d(width, width, 1), nn.Conv2d(2 * width, width, 1)])

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """(b, 3, h, w); the two maps, each of `width` channels."""
        fine = self.stem(x)
        coarse = self.sides[1](self.down(fine))
        return [self.sides[0](fine) + functional.interpolate(coarse, size=fine.shape[-2:]), coarse]


class Yolo(nn.Module):
    """A head without anchors that gives maps in training, decoded boxes in evaluation (YOLOv8)."""

    strides = (4, 8)

    def __init__(self, classes: int = 3, bins: int = 4, width: int = 8) -> None:
        super().__init__()
        self.backbone, self.bins, self.classes = Backbone(width), bins, classes
        self.boxes = nn.ModuleList(
            nn.Sequential(conv(width, width), nn.Conv2d(width, 4 * bins, 1)) for _ in self.strides
        )
        self.scores = nn.ModuleList(
            nn.Sequential(conv(width, width), nn.Conv2d(width, classes, 1)) for _ in self.strides
        )
        self.project = nn.Conv2d(bins, 1, 1, bias=False).requires_grad_(False)
        self.project.weight.data[:] = torch.arange(bins, dtype=torch.float).view(1, bins, 1, 1)
        self.shape: Any = None
        self.anchors = self.scales = torch.empty(0)

    def forward(self, x: torch.Tensor) -> Any:
        """Training: the maps. Evaluation: (b, 4 + classes, anchors), and the maps."""
        maps = [
            torch.cat([box(f), score(f)], 1)
            for f, box, score in zip(self.backbone(x), self.boxes, self.scores, strict=True)
        ]
        if self.training:
            return maps
        if self.shape != x.shape:
            self.anchors, self.scales = (each.transpose(0, 1) for each in self._anchors(maps))
            self.shape = x.shape
        flat = torch.cat([each.view(x.shape[0], 4 * self.bins + self.classes, -1) for each in maps], 2)
        box, score = flat.split((4 * self.bins, self.classes), 1)
        b, _, anchors = box.shape
        spread = box.view(b, 4, self.bins, anchors).transpose(2, 1).softmax(1)
        left, right = self.project(spread).view(b, 4, anchors).chunk(2, 1)
        first, last = self.anchors.unsqueeze(0) - left, self.anchors.unsqueeze(0) + right
        decoded = torch.cat([(first + last) / 2, last - first], 1) * self.scales
        return torch.cat([decoded, score.sigmoid()], 1), maps

    def _anchors(self, maps: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        points, scales = [], []
        for each, stride in zip(maps, self.strides, strict=True):
            h, w = each.shape[-2:]
            x = torch.arange(w, device=each.device, dtype=each.dtype) + 0.5
            y = torch.arange(h, device=each.device, dtype=each.dtype) + 0.5
            rows, columns = torch.meshgrid(y, x, indexing="ij")
            points.append(torch.stack((columns, rows), -1).view(-1, 2))
            scales.append(torch.full((h * w, 1), stride, dtype=each.dtype, device=each.device))
        return torch.cat(points), torch.cat(scales)


class AnchoredYolo(nn.Module):
    """Three anchors of each cell, decoded in evaluation by writes into slices (YOLOv3, YOLOv5)."""

    anchors: torch.Tensor

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.backbone, self.outs = Backbone(), 5 + classes
        self.heads = nn.ModuleList(nn.Conv2d(8, 3 * self.outs, 1) for _ in range(2))
        self.register_buffer(
            "anchors", torch.tensor([[[4, 5], [8, 6], [6, 9]], [[12, 15], [20, 14], [18, 24]]]).float()
        )
        self.grid = [torch.empty(0) for _ in range(2)]

    def forward(self, x: torch.Tensor) -> Any:
        """Training: two maps (b, 3, h, w, 5 + classes). Evaluation: all boxes, and the maps."""
        maps, boxes = [], []
        for i, (feature, head) in enumerate(zip(self.backbone(x), self.heads, strict=True)):
            b, _, h, w = feature.shape
            y = head(feature).view(b, 3, self.outs, h, w).permute(0, 1, 3, 4, 2).contiguous()
            maps.append(y)
            if not self.training:
                if self.grid[i].shape[2:4] != y.shape[2:4]:
                    rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
                    self.grid[i] = torch.stack((columns, rows), 2).view(1, 1, h, w, 2).to(y.dtype)
                s = y.sigmoid()
                s[..., 0:2] = (s[..., 0:2] * 2 - 0.5 + self.grid[i].to(y.device)) * 4 * 2**i
                s[..., 2:4] = (s[..., 2:4] * 2) ** 2 * self.anchors[i].view(1, 3, 1, 1, 2)
                boxes.append(s.view(b, -1, self.outs))
        return maps if self.training else (torch.cat(boxes, 1), maps)


class RetinaNet(nn.Module):
    """Two towers shared by all levels, flattened to (b, anchors, classes) (Lin et al. 2017)."""

    def __init__(self, classes: int = 3, anchors: int = 3, width: int = 8) -> None:
        super().__init__()
        self.backbone, self.classes = Backbone(width), classes
        self.scores, self.boxes = _tower(width, classes * anchors), _tower(width, 4 * anchors)
        nn.init.constant_(self.scores[-1].bias, -math.log(99.0))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """cls_logits and bbox_regression."""
        scores, boxes = [], []
        for feature in self.backbone(x):
            for made, head, last in ((scores, self.scores, self.classes), (boxes, self.boxes, 4)):
                y = head(feature)
                n, _, h, w = y.shape
                made.append(y.view(n, -1, last, h, w).permute(0, 3, 4, 1, 2).reshape(n, -1, last))
        return {"cls_logits": torch.cat(scores, 1), "bbox_regression": torch.cat(boxes, 1)}


def _tower(width: int, outs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(width, width, 3, padding=1),
        nn.GroupNorm(4, width),
        nn.ReLU(),
        nn.Conv2d(width, outs, 3, padding=1),
    )


class Fcos(nn.Module):
    """A learned scale per level, centerness, and boxes of which scores choose the best (Tian et al. 2019)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.backbone, self.scores, self.boxes = Backbone(width), _tower(width, 3), _tower(width, 5)
        self.scales = nn.ParameterList(nn.Parameter(torch.tensor(1.0)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> Any:
        """Training: scores, boxes and centerness. Evaluation: the ten best scores, and their boxes."""
        scores, boxes, centers = [], [], []
        for level, feature in enumerate(self.backbone(x)):
            scores.append(self.scores(feature).flatten(2))
            box, center = self.boxes(feature).split((4, 1), 1)
            boxes.append((torch.exp(self.scales[level] * box) * 2 ** (level + 2)).flatten(2))
            centers.append(center.flatten(2))
        score, box, center = torch.cat(scores, 2), torch.cat(boxes, 2), torch.cat(centers, 2)
        if self.training:
            return score, box, center
        best, where = (score.sigmoid() * center.sigmoid()).sqrt().amax(1).topk(10, 1)
        return best, box.gather(2, where.unsqueeze(1).expand(-1, 4, -1))


class Ssd(nn.Module):
    """Default boxes in a buffer, a scaled L2 norm of the first map, boxes in evaluation (Liu et al. 2016)."""

    priors: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(True), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU(True)
        )
        self.next = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(True))
        self.scale = nn.Parameter(torch.full((8,), 20.0))
        self.loc = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(16, 8, 3, padding=1)])
        self.conf = nn.ModuleList([nn.Conv2d(8, 6, 3, padding=1), nn.Conv2d(16, 6, 3, padding=1)])
        self.register_buffer("priors", torch.rand(2 * 80, 4) * 0.5 + 0.1)

    def forward(self, x: torch.Tensor) -> Any:
        """Locations and scores of (b, priors, .)."""
        fine = self.first(x)
        maps = [self.scale[None, :, None, None] * functional.normalize(fine), self.next(fine)]
        loc, conf = (
            torch.cat(
                [head(f).permute(0, 2, 3, 1).flatten(1) for f, head in zip(maps, heads, strict=True)], 1
            )
            for heads in (self.loc, self.conf)
        )
        loc, conf = loc.view(x.shape[0], -1, 4), conf.view(x.shape[0], -1, 3)
        if self.training:
            return loc, conf
        centers = self.priors[:, :2] + loc[..., :2] * 0.1 * self.priors[:, 2:]
        sizes = self.priors[:, 2:] * torch.exp(loc[..., 2:] * 0.2)
        return torch.cat((centers - sizes / 2, centers + sizes / 2), -1), conf.softmax(-1)


class CenterNet(nn.Module):
    """Peaks of a heat map by max pooling, and what is read at the best of them (Zhou et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(conv(3, 8, 3, 2), conv(8, 16, 3, 2))
        self.up = nn.Sequential(nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.heat, self.size = nn.Conv2d(8, 2, 1), nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> Any:
        """Training: heat map and sizes. Evaluation: scores, classes, rows and sizes of five peaks."""
        y = self.up(self.down(x))
        heat, size = self.heat(y).sigmoid(), self.size(y)
        if self.training:
            return heat, size
        peaks = heat * (functional.max_pool2d(heat, 3, 1, 1) == heat).to(heat.dtype)
        b, _, h, w = heat.shape
        scores, where = peaks.flatten(1).topk(5)
        cells = where % (h * w)
        sizes = size.permute(0, 2, 3, 1).reshape(b, -1, 2).gather(1, cells[..., None].expand(-1, -1, 2))
        return scores, where // (h * w), cells // w, sizes


class CornerNet(nn.Module):
    """Corner pooling: cumulative maxima from the bottom and from the right (Law and Deng 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.other = conv(3, 8, 3, 2), conv(8, 8), conv(8, 8)
        self.last = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 4, h, w)"""
        y = self.first(x)
        top = self.one(y).flip(2).cummax(2)[0].flip(2)
        left = self.other(y).flip(3).cummax(3)[0].flip(3)
        return self.last(top + left)


class Detr(nn.Module):
    """The demonstration of DETR: learned queries, learned rows and columns (Carion et al. 2020)."""

    def __init__(self, width: int = 16, queries: int = 5) -> None:
        super().__init__()
        self.backbone = nn.Sequential(conv(3, 8, 3, 2), conv(8, 16, 3, 2))
        self.conv = nn.Conv2d(16, width, 1)
        self.transformer = nn.Transformer(width, 2, 1, 2, 32, dropout=0.0)
        self.classes, self.boxes = nn.Linear(width, 4), nn.Linear(width, 4)
        self.query_pos = nn.Parameter(torch.rand(queries, width))
        self.row_embed = nn.Parameter(torch.rand(50, width // 2))
        self.col_embed = nn.Parameter(torch.rand(50, width // 2))

    def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """pred_logits and pred_boxes of each query; the batch is one image, as there."""
        h = self.conv(self.backbone(inputs))
        H, W = h.shape[-2:]
        pos = (
            torch.cat(
                [
                    self.col_embed[:W].unsqueeze(0).repeat(H, 1, 1),
                    self.row_embed[:H].unsqueeze(1).repeat(1, W, 1),
                ],
                dim=-1,
            )
            .flatten(0, 1)
            .unsqueeze(1)
        )
        h = self.transformer(
            pos + 0.1 * h.flatten(2).permute(2, 0, 1), self.query_pos.unsqueeze(1)
        ).transpose(0, 1)
        return {"pred_logits": self.classes(h), "pred_boxes": self.boxes(h).sigmoid()}


class MaskedDetr(nn.Module):
    """DETR with images of several sizes: a padding mask makes sine positions and masks attention."""

    def __init__(self, width: int = 16, queries: int = 4) -> None:
        super().__init__()
        self.backbone = nn.Sequential(conv(3, 8, 3, 2), conv(8, width, 3, 2))
        layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(width, 2, 32, 0.0, batch_first=True), 1
        )
        self.query_embed, self.head = nn.Embedding(queries, width), nn.Linear(width, 5)

    def forward(self, images: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """images (b, 3, h, w), mask (b, h, w), true where padded; (b, queries, 5)."""
        x = self.backbone(images)
        small = functional.interpolate(mask[None].float(), size=x.shape[-2:]).to(torch.bool)[0]
        rows, columns = (~small).cumsum(1, dtype=x.dtype), (~small).cumsum(2, dtype=x.dtype)
        scale = 10 ** torch.arange(x.shape[1] // 4, dtype=x.dtype, device=x.device)
        waves = [(each[..., None] / scale) for each in (rows, columns)]
        pos = torch.cat([f(each) for each in waves for f in (torch.sin, torch.cos)], -1)
        padded = small.flatten(1)
        memory = self.encoder(x.flatten(2).transpose(1, 2) + pos.flatten(1, 2), src_key_padding_mask=padded)
        queries = self.query_embed.weight.unsqueeze(0).repeat(len(images), 1, 1)
        return self.head(self.decoder(queries, memory, memory_key_padding_mask=padded))


class Perceiver(nn.Module):
    """Learned latents that read all pixels, and process themselves (Jaegle et al. 2021)."""

    def __init__(self, width: int = 16, latents: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.latents = nn.Parameter(torch.randn(latents, width) * 0.02)
        self.read = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.inner = nn.TransformerEncoderLayer(width, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True)
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 5)"""
        pixels = self.norms[0](self.patches(x).flatten(2).transpose(1, 2))
        latents = self.latents.expand(x.shape[0], -1, -1)
        for turn in range(2):
            read, _ = self.read(self.norms[1 + turn](latents), pixels, pixels, need_weights=False)
            latents = self.inner(latents + read)
        return self.head(self.norms[3](latents).mean(1))


class QFormer(nn.Module):
    """Queries that attend to words and to an image in turn, with a mask of words (BLIP-2, Li et al. 2023)."""

    def __init__(self, width: int = 16, queries: int = 3) -> None:
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(3, width, 4, 4), nn.GELU(), nn.Conv2d(width, width, 3, padding=1)
        )
        self.words = nn.Embedding(20, width, padding_idx=0)
        self.queries = nn.Parameter(torch.zeros(1, queries, width).normal_(std=0.02))
        self.own = nn.MultiheadAttention(width, 4, batch_first=True)
        self.cross = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, image: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """image (b, 3, h, w), ids (b, words), 0 for none; (b, queries, width)."""
        queries = self.queries.expand(len(ids), -1, -1)
        both = torch.cat([queries, self.words(ids)], 1)
        absent = torch.cat([torch.zeros(queries.shape[:2], dtype=torch.bool, device=ids.device), ids == 0], 1)
        both = self.norms[0](both + self.own(both, both, both, key_padding_mask=absent)[0])
        queries, pixels = both[:, : queries.shape[1]], self.image(image).flatten(2).transpose(1, 2)
        return self.norms[1](queries + self.cross(queries, pixels, pixels)[0])


class SlotAttention(nn.Module):
    """Slots that compete for pixels, refined by a GRU cell (Locatello et al. 2020)."""

    def __init__(self, width: int = 8, slots: int = 3) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 5, 2, 2), nn.ReLU(), nn.Conv2d(width, width, 5, 2, 2)
        )
        self.slots, self.norm = nn.Parameter(torch.randn(1, slots, width)), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.gru = nn.GRUCell(width, width)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(width, width, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width, 4, 4, 2, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The image (b, 3, h, w), as the slots paint it together."""
        features = self.encoder(x)
        b, c, h, w = features.shape
        inputs = self.norm(features.flatten(2).transpose(1, 2))
        keys, values, slots = self.k(inputs), self.v(inputs), self.slots.repeat(b, 1, 1)
        n = slots.shape[1]
        for _ in range(2):
            attention = (torch.einsum("bid,bjd->bij", self.q(slots), keys) * c**-0.5).softmax(1) + 1e-8
            attention = attention / attention.sum(-1, keepdim=True)
            updates = torch.einsum("bjd,bij->bid", values, attention)
            slots = self.gru(updates.reshape(-1, c), slots.reshape(-1, c)).reshape(b, n, c)
        maps = self.decoder(slots.reshape(b * n, c, 1, 1).expand(-1, -1, h, w))
        colors, masks = maps.reshape(b, n, 4, 4 * h, 4 * w).split((3, 1), 2)
        return (colors * masks.softmax(1)).sum(1)


class MaskFormer(nn.Module):
    """Masks as products of queries and pixels (Cheng et al. 2021)."""

    def __init__(self, width: int = 8, queries: int = 4) -> None:
        super().__init__()
        self.backbone, self.pixels = Backbone(width), nn.Conv2d(width, width, 3, padding=1)
        self.queries, self.feats = nn.Embedding(queries, width), nn.Embedding(queries, width)
        self.layer = nn.TransformerDecoderLayer(width, 2, 16, 0.0, batch_first=True)
        self.classes, self.masks = (
            nn.Linear(width, 4),
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, h, w): scores of each class at each pixel."""
        fine, coarse = self.backbone(x)
        queries = (self.queries.weight + self.feats.weight).unsqueeze(0).repeat(x.shape[0], 1, 1)
        made = self.layer(queries, coarse.flatten(2).transpose(1, 2))
        masks = torch.einsum("bqc,bchw->bqhw", self.masks(made), self.pixels(fine))
        classes = self.classes(made).softmax(-1)[..., :-1]
        up = functional.interpolate(masks, size=x.shape[-2:], mode="bilinear", align_corners=False)
        return torch.einsum("bqc,bqhw->bchw", classes, up.sigmoid())


class CausalCaption(nn.Module):
    """Words after an image: a decoder with a causal mask in a buffer, and a padding mask."""

    mask: torch.Tensor

    def __init__(self, width: int = 16, words: int = 6) -> None:
        super().__init__()
        self.image = nn.Sequential(conv(3, 8, 3, 2), conv(8, width, 3, 2))
        self.words, self.places = nn.Embedding(20, width), nn.Parameter(torch.zeros(words, width))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(words))
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(width, 2, 32, 0.0, batch_first=True, norm_first=True), 2
        )
        self.head = nn.Linear(width, 20, bias=False)
        self.head.weight = self.words.weight

    def forward(self, image: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """(b, words, 20)"""
        memory = self.image(image).flatten(2).transpose(1, 2)
        made = self.decoder(self.words(ids) + self.places, memory, tgt_mask=self.mask, tgt_is_causal=True)
        return self.head(made)


def entries() -> list[Entry]:
    """All models."""
    ids = torch.tensor([[3, 4, 5, 6, 7, 8], [9, 3, 2, 1, 0, 0]])
    padded = torch.zeros(2, 32, 32, dtype=torch.bool)
    padded[1, 24:], padded[1, :, 16:] = True, True
    made: list[tuple[str, Callable[[], nn.Module], Any]] = [
        ("YOLO without anchors", Yolo, IMAGES),
        ("YOLO with anchors", AnchoredYolo, IMAGES),
        ("RetinaNet head", RetinaNet, IMAGES),
        ("FCOS, best boxes", Fcos, IMAGES),
        ("SSD, decoded", Ssd, IMAGES),
        ("CenterNet, peaks", CenterNet, IMAGES),
        ("CornerNet pooling", CornerNet, IMAGES),
        ("DETR, learned queries", Detr, (1, 3, 32, 32)),
        ("DETR, padding mask", MaskedDetr, (IMAGES, padded)),
        ("Perceiver", Perceiver, IMAGES),
        ("Q-Former", QFormer, (IMAGES, ids)),
        ("slot attention", SlotAttention, IMAGES),
        ("MaskFormer", MaskFormer, IMAGES),
        ("captions, causal mask", CausalCaption, (IMAGES, ids)),
    ]
    return [Entry("detection", name, make, given) for name, make, given in made]
