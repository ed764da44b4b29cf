"""Models of transformers, from their configs at tiny sizes; nothing is downloaded."""

from typing import Any

import torch
import transformers
from torch import nn

CLASSES = 4
WORDS = 64


class First(nn.Module):
    """Returns the first output of a transformers model for one tensor, passed as the given argument or arguments."""

    def __init__(self, model: nn.Module, arguments: tuple[str, ...]):
        super().__init__()
        self.model = model
        self.arguments = arguments

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(**dict.fromkeys(self.arguments, x))[0]
        return logits


class NextWord(First):
    """The logits of the word after the last `[B, WORDS]`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)[:, -1]


class Decoder(nn.Module):
    """A GPT-2 from its parts, of which all but the blocks can be merged; its embedding is its output layer too."""

    def __init__(self, model: Any):
        super().__init__()
        self.words, self.places, self.blocks = model.transformer.wte, model.transformer.wpe, model.transformer.h
        self.norm, self.head = model.transformer.ln_f, model.lm_head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = self.words(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            values = block(values)
        logits: torch.Tensor = self.head(self.norm(values))[:, -1]
        return logits


class MaskedWord(nn.Module):
    """A BERT from its parts that says the first word; its embedding is its output layer too."""

    def __init__(self, model: Any):
        super().__init__()
        self.embeddings, self.layers, self.head = model.bert.embeddings, model.bert.encoder.layer, model.cls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = self.embeddings(x)
        for layer in self.layers:
            values = layer(values)
        logits: torch.Tensor = self.head(values)[:, 0]
        return logits


class Translator(nn.Module):
    """A T5 from its parts: both sides and the output layer share one embedding."""

    def __init__(self, model: Any):
        super().__init__()
        self.words, self.head = model.shared, model.lm_head
        self.encoder, self.decoder = model.encoder.block, model.decoder.block
        self.middle, self.end = model.encoder.final_layer_norm, model.decoder.final_layer_norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        source, values = self.words(x), self.words(x)
        for block in self.encoder:
            source = block(source)[0]
        source = self.middle(source)
        for block in self.decoder:
            values = block(values, encoder_hidden_states=source)[0]
        logits: torch.Tensor = self.head(self.end(values))[:, -1]
        return logits


class Patches(nn.Module):
    """A ViT from its parts."""

    def __init__(self, model: Any):
        super().__init__()
        self.embeddings, self.layers, self.norm = model.vit.embeddings, model.vit.layers, model.vit.layernorm
        self.head = model.classifier

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = self.embeddings(x)
        for layer in self.layers:
            values = layer(values)
        logits: torch.Tensor = self.head(self.norm(values)[:, 0])
        return logits


def _text(width: int, depth: int) -> dict[str, Any]:
    return {
        "vocab_size": WORDS,
        "hidden_size": 16 * width,
        "num_hidden_layers": depth,
        "num_attention_heads": 2,
        "intermediate_size": 24 * width,
        "max_position_embeddings": 32,
        "num_labels": CLASSES,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _two_sided(width: int, depth: int) -> dict[str, Any]:
    sides = ("encoder", "decoder")
    return {
        "vocab_size": WORDS,
        "d_model": 16 * width,
        "max_position_embeddings": 32,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
        "forced_eos_token_id": None,
        **{f"{side}_layers": depth for side in sides},
        **{f"{side}_attention_heads": 2 for side in sides},
        **{f"{side}_ffn_dim": 24 * width for side in sides},
    }


def _t5(width: int, depth: int) -> dict[str, Any]:
    return {
        "vocab_size": WORDS,
        "d_model": 16 * width,
        "d_kv": 8,
        "d_ff": 24 * width,
        "num_layers": depth,
        "num_decoder_layers": depth,
        "num_heads": 2,
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
    }


def _vit(width: int, depth: int) -> dict[str, Any]:
    return {
        "image_size": 32,
        "patch_size": 8,
        "hidden_size": 16 * width,
        "num_hidden_layers": depth,
        "num_attention_heads": 2,
        "intermediate_size": 24 * width,
        "num_labels": CLASSES,
    }


def _swin(width: int, depth: int) -> dict[str, Any]:
    return {
        "image_size": 32,
        "patch_size": 2,
        "embed_dim": 8 * width,
        "depths": [depth, 1],
        "num_heads": [1, 2],
        "window_size": 4,
        "num_labels": CLASSES,
    }


def _two_stages(width: int, depth: int) -> dict[str, Any]:
    return {
        "embed_dim": 8 * width,
        "hidden_sizes": [8 * width, 16 * width],
        "depths": [depth, 1],
        "num_labels": CLASSES,
    }


def _four_stages(width: int, depth: int) -> dict[str, Any]:
    sizes = [8 * width, 8 * width, 16 * width, 16 * width]
    return {"hidden_sizes": sizes, "depths": [depth, 1, 1, 1], "num_labels": CLASSES}


def _series(width: int, depth: int) -> dict[str, Any]:
    return {
        "context_length": 32,
        "num_input_channels": 2,
        "patch_length": 8,
        "patch_stride": 8,
        "d_model": 8 * width,
        "num_layers": depth,
        "num_hidden_layers": depth,
        "num_targets": CLASSES,
    }


_TEXT, _BOTH, _PIXELS, _VALUES = ("input_ids",), ("input_ids", "decoder_input_ids"), ("pixel_values",), ("past_values",)
_GROUPED = {"num_key_value_heads": 1}
_HEADS = {"image_size": 32, "num_attention_heads": [1, 1, 2, 2]}

# Models that compute in float32 whatever their weights are, as Mamba does, can't be compared in float64.
# By architecture: the model's class and what is made of it, what it is fed, its sizes, and more of its config.
MODELS: dict[str, tuple[str, Any, tuple[str, ...], Any, dict[str, Any]]] = {
    "BERT from its parts": ("BertForMaskedLM", MaskedWord, _TEXT, _text, {}),
    "GPT-2 from its parts": ("GPT2LMHeadModel", Decoder, _TEXT, _text, {}),
    "T5 from its parts": ("T5ForConditionalGeneration", Translator, _BOTH, _t5, {}),
    "ViT from its parts": ("ViTForImageClassification", Patches, _PIXELS, _vit, {}),
    "BERT": ("BertForMaskedLM", NextWord, _TEXT, _text, {}),
    "RoBERTa": ("RobertaForSequenceClassification", First, _TEXT, _text, {}),
    "ELECTRA": ("ElectraForSequenceClassification", First, _TEXT, _text, {"embedding_size": 8}),
    "ALBERT": ("AlbertForMaskedLM", NextWord, _TEXT, _text, {"embedding_size": 8}),
    "MPNet": ("MPNetForSequenceClassification", First, _TEXT, _text, {}),
    "DeBERTa": ("DebertaForSequenceClassification", First, _TEXT, _text, {}),
    "DeBERTa v2": ("DebertaV2ForSequenceClassification", First, _TEXT, _text, {}),
    "ModernBERT": ("ModernBertForSequenceClassification", First, _TEXT, _text, {}),
    "FNet": ("FNetForSequenceClassification", First, _TEXT, _text, {}),
    "MobileBERT": (
        "MobileBertForSequenceClassification",
        First,
        _TEXT,
        _text,
        {"embedding_size": 8, "intra_bottleneck_size": 8, "true_hidden_size": 8},
    ),
    "ConvBERT": ("ConvBertForSequenceClassification", First, _TEXT, _text, {"embedding_size": 8}),
    "RoFormer": ("RoFormerForSequenceClassification", First, _TEXT, _text, {}),
    "GPT-2": ("GPT2LMHeadModel", NextWord, _TEXT, _text, {}),
    "GPT-NeoX": ("GPTNeoXForCausalLM", NextWord, _TEXT, _text, {}),
    "OPT": ("OPTForCausalLM", NextWord, _TEXT, _text, {"ffn_dim": 24, "word_embed_proj_dim": 16}),
    "BLOOM": ("BloomForCausalLM", NextWord, _TEXT, _text, {}),
    "Falcon": ("FalconForCausalLM", NextWord, _TEXT, _text, {}),
    "Phi": ("PhiForCausalLM", NextWord, _TEXT, _text, {}),
    "Llama": ("LlamaForCausalLM", NextWord, _TEXT, _text, _GROUPED),
    "Qwen2": ("Qwen2ForCausalLM", NextWord, _TEXT, _text, _GROUPED),
    "Gemma": ("GemmaForCausalLM", NextWord, _TEXT, _text, {**_GROUPED, "head_dim": 8}),
    "T5": ("T5ForConditionalGeneration", NextWord, _BOTH, _t5, {}),
    "T5 gated": ("T5ForConditionalGeneration", NextWord, _BOTH, _t5, {"feed_forward_proj": "gated-gelu"}),
    "BART": ("BartForConditionalGeneration", NextWord, _BOTH, _two_sided, {}),
    "Pegasus": ("PegasusForConditionalGeneration", NextWord, _BOTH, _two_sided, {}),
    "ViT": ("ViTForImageClassification", First, _PIXELS, _vit, {}),
    "DeiT": ("DeiTForImageClassification", First, _PIXELS, _vit, {}),
    "BEiT": ("BeitForImageClassification", First, _PIXELS, _vit, {}),
    "DINOv2": ("Dinov2ForImageClassification", First, _PIXELS, _vit, {"drop_path_rate": 0.2}),
    "Swin": ("SwinForImageClassification", First, _PIXELS, _swin, {}),
    "Swin v2": ("Swinv2ForImageClassification", First, _PIXELS, _swin, {}),
    "ConvNeXt": ("ConvNextForImageClassification", First, _PIXELS, _two_stages, {"num_stages": 2}),
    "ConvNeXt v2": ("ConvNextV2ForImageClassification", First, _PIXELS, _two_stages, {"num_stages": 2}),
    "ResNet of transformers": (
        "ResNetForImageClassification",
        First,
        _PIXELS,
        _two_stages,
        {"embedding_size": 8, "layer_type": "basic"},
    ),
    "RegNet": (
        "RegNetForImageClassification",
        First,
        _PIXELS,
        _two_stages,
        {"embedding_size": 8, "groups_width": 4, "layer_type": "y"},
    ),
    "FocalNet": (
        "FocalNetForImageClassification",
        First,
        _PIXELS,
        _two_stages,
        {"image_size": 32, "focal_levels": [1, 1], "focal_windows": [3, 3]},
    ),
    "PoolFormer": ("PoolFormerForImageClassification", First, _PIXELS, _four_stages, {}),
    "SegFormer": ("SegformerForImageClassification", First, _PIXELS, _four_stages, _HEADS),
    "PVT": ("PvtForImageClassification", First, _PIXELS, _four_stages, _HEADS),
    "PVT v2": ("PvtV2ForImageClassification", First, _PIXELS, _four_stages, _HEADS),
    "PatchTSMixer": ("PatchTSMixerForTimeSeriesClassification", First, _VALUES, _series, {}),
    "PatchTST": (
        "PatchTSTForClassification",
        First,
        _VALUES,
        _series,
        {"num_attention_heads": 2, "ffn_dim": 16},
    ),
}


def transformer(name: str, width: int, depth: int) -> nn.Module:
    """A model of four classes, or one that says the next word.

    Args:
        name: among `MODELS`.
        width: 1 or 2.
        depth: how many layers, or how many in its first stage.
    """
    kind, wrapper, arguments, sizes, more = MODELS[name]
    model_class = getattr(transformers, kind)
    model = model_class(model_class.config_class(**sizes(width, depth) | more))
    return wrapper(model, arguments) if issubclass(wrapper, First) else wrapper(model)
