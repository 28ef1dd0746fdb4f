"""Why this server does not serve some values of `model_type` that transformers knows, and the nearest served family.

The table covers transformers 5.24, and some types whose code is published with their checkpoints. A test compares it
with the types of release 5.23, and names those that 5.24 added. Architectures that cannot be served in principle are in
`refused.REFUSED`. Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from models.families.shared.fields import short
from models.families.shared.refused import REFUSED


class Unserved(NamedTuple):
    """Why a `model_type` is not served.

    reason: end of a sentence for the error message. nearest: the most similar served `model_type`, or empty.
    """

    reason: str
    nearest: str


_REASONS = {
    "rules": "its layers or the names of its tensors differ from those of every served family",
    "experts": "its mixture of experts or the layers around it are not those of a served family",
    "indexer": "its attention reads only the tokens that an indexer selects, which is not supported",
    "hybrid": "its recurrent layers, or their combination with attention, are not those of a served family",
    "diff": "its attention is a difference of two softmaxes, which is not supported",
    "recurse": "it runs the same layers several times in two nested loops, which is not supported",
    "bytes": "it reads bytes in patches, which a part of the model forms",
    "chars": "it reads characters and joins several into one position",
    "approx": "its attention approximates the softmax",
    "pooled": "its encoder shortens the text from block to block, which is not supported",
    "int": "it computes in integers with scales of its own",
    "langs": "it adds embeddings of languages and has a head of its own, which are not supported",
    "entities": "it reads entities besides words, which is not supported",
    "layout": "it reads the places of words on a page or in a table, which requests cannot give",
    "protein": "it reads proteins, not text",
    "draft": "it only drafts tokens for another model, from that model's hidden states and keys",
    "diffusion": "it generates a block of tokens at once by diffusion, which is not supported",
    "dual": "it joins two encoders, or an encoder with an index of documents, which is not supported",
    "decides": "it decides between options with a head of its own, which is not supported",
    "modalities": "it reads bytes, pictures or sound into a fixed number of positions, which is not supported",
    "pictures": "it reads pictures, and its language model is not served without them",
    "speech": "it reads sound; of such models, Whisper and the encoders of wav2vec 2.0 with a CTC head are served",
    "ctc": "it has a CTC head, but its encoder of sound is not that of wav2vec 2.0",
    "transducer": "it is a transducer: a second network reads the labels so far, which is not supported",
    "conformer": "its decoder behind a Conformer encoder is not supported",
    "sound": "it makes or encodes sound, which is not served",
    "series": "it reads series of numbers, not text",
    "vision": "it reads pictures, or compares them with texts, which is not served",
}
_ROWS: tuple[tuple[str, str, str], ...] = (
    ("rules", "llama", "bitnet nanochat"),
    ("rules", "gptj", "codegen"),
    ("rules", "gpt_neox", "gpt_neox_japanese"),
    ("rules", "gpt2", "ctrl gpt-sw3 cpmant"),
    ("rules", "bert", "bert-generation splinter roc_bert"),
    ("rules", "xlm-roberta", "xmod"),
    ("rules", "mistral", "ministral"),
    ("rules", "gemma2", "dory"),
    ("rules", "t5gemma", "t5_gemma_module"),
    ("rules", "t5gemma2", "t5gemma2_text t5gemma2_encoder t5gemma2_decoder"),
    # The types of the next five rows are not in transformers. Their code is published with their checkpoints.
    ("rules", "qwen2", "qwen"),
    ("rules", "llama", "baichuan internlm"),
    ("rules", "glm", "chatglm"),
    ("rules", "granite", "minicpm"),
    ("rules", "internlm3", "internlm2"),
    ("experts", "qwen3_moe", "beam flint kolibri1 laguna minimax_m2"),
    ("experts", "deepseek_v3", "axk1 sarvam_mla dots1 exaone_moe longcat_flash mimo_v2_flash"),
    ("experts", "mixtral", "dbrx jetmoe"),
    ("experts", "olmoe", "flex_olmo"),
    ("experts", "glm4_moe", "solar_open sarvam_moe"),
    ("experts", "llama", "doge zaya"),
    ("indexer", "deepseek_v3", "axk2 deepseek_v32 deepseek_v4 glm_moe_dsa hy_v4 dots3_note dots3_note_text glm5_next"),
    ("indexer", "qwen3_5_moe", "qwen4_exp qwen4_exp_text"),
    ("hybrid", "qwen3_next", "kimi_linear bailing_hybrid"),
    ("hybrid", "mixtral", "minimax"),
    ("diff", "llama", "diffllama"),
    ("recurse", "llama", "hrm_text"),
    ("bytes", "t5", "blt"),
    ("chars", "bert", "canine"),
    ("approx", "longformer", "mra yoso"),
    ("pooled", "electra", "funnel"),
    ("int", "roberta", "ibert"),
    ("langs", "xlm-roberta", "xlm flaubert"),
    ("entities", "roberta", "luke"),
    ("layout", "bert", "bros layoutlm layoutlmv2 layoutlmv3 layoutxlm lilt tapas markuplm"),
    ("protein", "bert", "esm esmc esmfold2 evolla EvollaModel"),
    ("draft", "gemma4", "gemma4_assistant"),
    ("draft", "gemma4_unified", "gemma4_unified_assistant"),
    ("draft", "llama", "muse_glimmer_assistant"),
    ("diffusion", "gemma4", "diffusion_gemma diffusion_gemma_text"),
    ("dual", "bert", "dpr rag"),
    ("decides", "qwen3", "jev"),
    ("modalities", "bert", "perceiver"),
    (
        "pictures",
        "llava",
        "aria aria_text florence2 florence_vision "
        "molmo2 molmo2_text molmo2_adapter emu3 fuyu "
        "chameleon idefics mllama kosmos-2 kosmos-2.5 blip-2 blip_2_qformer blip_2_vision_model instructblip "
        "instructblipvideo git pi0",
    ),
    ("pictures", "llava_next", "granite4_vision"),
    ("pictures", "idefics3", "idefics_perciever granite_docling colmodernvbert ultravbert"),
    ("pictures", "qwen2_vl", "minicpm_ocr hyperclovax_vision_v2"),
    (
        "pictures",
        "qwen2_5_vl",
        "glm_ocr glm_image qwen2_5_omni qwen2_5_omni_thinker qwen2_5_omni_talker "
        "qwen2_5_omni_token2wav qwen2_5_omni_bigvgan qwen2_5_omni_dit colqwen2",
    ),
    (
        "pictures",
        "qwen3_vl",
        "qwen3_omni_moe qwen3_omni_moe_thinker qwen3_omni_moe_talker_text "
        "qwen3_omni_moe_talker_code_predictor cosmos3_edge cosmos3_omni",
    ),
    ("pictures", "mistral3", "mistral_large4"),
    ("pictures", "glm4_moe", "glm4v_moe glmga"),
    ("pictures", "ernie4_5_moe", "ernie4_5_vl_moe"),
    ("pictures", "ernie4_5", "paddleocr_vl"),
    ("pictures", "gemma", "paligemma colpali"),
    ("pictures", "gemma3", "shieldgemma2 step3p5 step3p7"),
    ("pictures", "cohere2", "aya_vision cohere2_vision cohere_compass cohere_compass_text"),
    ("pictures", "phi3", "phi4_multimodal"),
    ("pictures", "internvl", "nemotron_h_omni"),
    (
        "pictures",
        "qwen3_5",
        "minicpmv4_6 minicpmv4_7 inkling inkling2 inkling2_text inkling_text inkling_mm_model inkling2_loop",
    ),
    ("pictures", "deepseek_v2", "deepseek_ocr2 unlimited_ocr"),
    ("pictures", "deepseek_v3", "muse_spark minimax_m3_vl minimax_m3_vl_text"),
    ("pictures", "gemma2", "muse_glimmer"),
    ("pictures", "hunyuan_v1_dense", "hunyuan_vl"),
    ("pictures", "llama", "neomme"),
    ("pictures", "apertus", "apertus1p5 apertus1p5_vision_tokenizer"),
    ("pictures", "hy_v3", "hy_v4_vl"),
    ("pictures", "bert", "visual_bert lxmert vilt bridgetower tvp blip"),
    ("pictures", "t5", "udop pix2struct"),
    ("pictures", "bart", "trocr nougat vision-encoder-decoder pp_chart2table pp_formulanet"),
    (
        "speech",
        "whisper",
        "audioflamingo3 musicflamingo qwen2_audio qwen3_asr glmasr fun_asr_nano granite_speech "
        "granite_speech_plus voxtral voxtral_realtime vibevoice_asr nemo_speechlm kyutai_speech_to_text "
        "moss_transcribe_diarize omniasr seamless_m4t seamless_m4t_v2 audio-spectrogram-transformer "
        "nemotron3_diarization speech-encoder-decoder speech_to_text speecht5 clap "
        "pe_audio pe_audio_video nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_audio "
        "nemotron3_5_transcribe_word_timestamp pe_audio_video_encoder",
    ),
    (
        "ctc",
        "wav2vec2",
        "sew sew-d wav2vec2-bert wav2vec2-conformer data2vec-audio lasr_ctc omniasr_ctc "
        "granite_speech5_ctc granite_speech5_encoder lasr_encoder parakeet_encoder",
    ),
    ("transducer", "wav2vec2", "parakeet_rnnt parakeet_tdt nemotron_asr_streaming nemotron3_5_asr"),
    ("conformer", "cohere_asr", "canary"),
    (
        "sound",
        "whisper",
        "bark csm dia fastspeech2_conformer fastspeech2_conformer_with_hifigan gradium_phonon_tts higgs_audio_v2 "
        "pocket_tts pop2piano vibevoice vits moshi moshi_depth musicgen musicgen_melody vibevoice_diffusion clvp "
        "dac encodec mimi neucodec univnet xcodec xcodec2 higgs_audio_v2_tokenizer pocket_tts_audio_tokenizer "
        "vibevoice_acoustic_tokenizer speecht5_hifigan fastspeech2_conformer_hifigan csm_depth_decoder_model "
        "wavtokenizer",
    ),
    (
        "series",
        "",
        "patchtsmixer patchtst timesfm timesfm2_5 autoformer informer time_series_transformer decision_transformer",
    ),
    (
        "vision",
        "",
        "aimv2_vision_model align altclip beit bit chinese_clip chmv2 clipseg conditional_detr convnext "
        "convnextv2 cvt d_fine dab-detr data2vec-vision deformable_detr deimv2 deit depth_anything depth_pro detr "
        "dinat dinov2 dinov2_with_registers dinov3_convnext dinov3_vit donut-swin dpt edgetam edgetam_video "
        "efficientloftr efficientnet eomt eomt_dinov3 focalnet glpn grounding-dino hgnet_v2 hiera ijepa imagegpt "
        "levit lightglue lw_detr lw_detr_vit mask2former maskformer maskformer-swin metaclip_2 mlcd_vision_model "
        "mm-grounding-dino mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 omdet-turbo oneformer owlv2 owlvit "
        "pixio poolformer pp_doclayout_v2 pp_doclayout_v3 pp_doclayout_v4 pp_lcnet pp_lcnet_v3 pp_lcnet_v4 "
        "pp_ocrv5_mobile_det pp_ocrv5_mobile_rec pp_ocrv5_server_det pp_ocrv5_server_rec pp_ocrv6_medium_det "
        "pp_ocrv6_small_det pp_ocrv6_small_rec pp_ocrv6_tiny_rec prompt_depth_anything pvt pvt_v2 regnet resnet "
        "rf_detr rf_detr_dinov2 rt_detr rt_detr_resnet rt_detr_v2 sam sam2 sam2_video sam3_tracker sam3_video "
        "sam_hq sapiens2 segformer siglip siglip2 siglip_vision_model slanet slanext superglue superpoint "
        "swiftformer swin swin2sr swinv2 table-transformer textnet timesformer timm_backbone timm_wrapper tipsv2 "
        "tipsv2_dpt tipsv2_vision_model upernet uvdoc_backbone videomae videomt videoprism "
        "videoprism_vision_model vit vit_mae vit_msn vitdet vitmatte vitpose vitpose_backbone vivit vjepa2 yolos "
        "zoedepth mlcd aimv2 flava groupvit mgp-str pe_video pixtral radio sam3 sam3_lite_text sam3_tracker_video "
        "seggpt uvdoc vision-text-dual-encoder xclip sam2_hiera_det_model sam3_vit_model sapiens2_head "
        "deepseek_ocr2_sam_vision_model unlimited_ocr_sam_vision_model chameleon_vqgan emu3_vqgan janus_vqgan "
        "glm_image_vqmodel flava_image_codebook",
    ),
)
"""Key of the reason in `_REASONS`, nearest served family (empty for none), and values of `model_type`."""
UNSERVED: Mapping[str, Unserved] = {
    kind: Unserved(_REASONS[reason], nearest) for reason, nearest, kinds in _ROWS for kind in kinds.split()
}
NEAREST_OF_REFUSED: Mapping[str, str] = {
    "reformer": "longformer",
    "performer": "bert",
    "linformer": "bert",
    "nystromformer": "longformer",
    "xlnet": "roberta",
    "transfo-xl": "gpt2",
    "nllb-moe": "m2m_100",
    "prophetnet": "bart",
    "xlm-prophetnet": "mbart",
    "fnet": "bert",
    "mamba": "mamba2",
    "falcon_mamba": "mamba2",
    "jamba": "nemotron_h",
    "zamba": "nemotron_h",
    "zamba2": "nemotron_h",
    "recurrent_gemma": "gemma2",
    "rwkv": "mamba2",
    "xlstm": "mamba2",
}
_PARTS = frozenset(("vision", "text", "audio", "model", "encoder", "decoder", "qformer"))
_PARTS |= {"perceiver", "patcher", "transformer", "talker"}
"""The last word of a `model_type` is one of these if the model is only a part of a larger checkpoint."""
_MAX_CLOSE = 3


def why_not_served(kind: Any, served: Collection[str], classes: Mapping[str, str], named: Any = None) -> str:
    """The message for a `model_type` that is not served, with the reason and the nearest served family.

    kind: value of `model_type` in `config.json`, of any type. named: value of `architectures`, of any type.
    served: all values of `model_type` that are served.
    classes: names of all served model classes, each with its `model_type`.
    """
    own = _own_architecture(named, classes)
    if not isinstance(kind, str):
        return f"'model_type': {short(kind)} is not supported: it must be the name of a family{own}"
    known = UNSERVED.get(kind)
    if kind in REFUSED:
        known = Unserved(REFUSED[kind], NEAREST_OF_REFUSED[kind])
    if known is None:
        known = _part(kind, served)
    if known is not None:
        near = f"the nearest served family is {known.nearest}" if known.nearest else "no served family is near to it"
        return f"'model_type': {short(kind)} is not supported: {known.reason}; {near}"
    message = f"'model_type': {short(kind)} is not known"
    if own:
        return f"{message}{own}"
    close = get_close_matches(kind, sorted(served), n=_MAX_CLOSE)
    names = f"; names like it: {', '.join(close)}" if close else ""
    return f"{message}{names}; `triptych models` lists the families"


def _own_architecture(named: Any, classes: Mapping[str, str]) -> str:
    """End of the message for a checkpoint whose first architecture is served under another `model_type`; else empty."""
    first = named[0] if isinstance(named, list) and named else None
    if not isinstance(first, str) or first not in classes:
        return ""
    return (
        f"; its architecture {first} is that of {classes[first]!r}: write this 'model_type' if its tensors are the same"
    )


def _part(kind: str, served: Collection[str]) -> Unserved | None:
    """Why a type such as `clip_text_model` is not served: it is only a part of another type.

    Returns None if `kind` does not consist of a known `model_type` and the name of a part, such as `text_model`.
    """
    if re.split("[_-]", kind)[-1] not in _PARTS:
        return None
    for whole in _wholes(kind):
        name = next((known for known in (*served, *UNSERVED, *REFUSED) if known.replace("-", "_") == whole), None)
        if name is not None:
            nearest = (
                name if name in served else UNSERVED[name].nearest if name in UNSERVED else NEAREST_OF_REFUSED[name]
            )
            return Unserved(f"it is a part of a checkpoint of the type {name!r}, not a whole one", nearest)
    return None


def _wholes(kind: str) -> Iterator[str]:
    """Yield a `model_type` without its last word, without its last two words, and so on, with words joined by `_`."""
    words = re.split("[_-]", kind)
    for count in range(len(words) - 1, 0, -1):
        yield "_".join(words[:count])
