"""Load folders in every way of libraries that do not know patches; print the errors of each folder's ways as JSON."""

import json
import sys

import transformers


def main(folder: str) -> None:
    sdpa = {"attn_implementation": "sdpa"}
    ways = {
        "Auto class": lambda: transformers.AutoModelForSequenceClassification.from_pretrained(folder),
        "Auto class, sdpa": lambda: transformers.AutoModelForSequenceClassification.from_pretrained(folder, **sdpa),
        "encoder, sdpa": lambda: transformers.AutoModel.from_pretrained(folder, **sdpa),
        "class, sdpa": lambda: transformers.BertForSequenceClassification.from_pretrained(folder, **sdpa),
        "class of the encoder, eager": lambda: transformers.BertModel.from_pretrained(
            folder, attn_implementation="eager"
        ),
        "another head, sdpa": lambda: transformers.BertForMaskedLM.from_pretrained(folder, **sdpa),
        "model of the config": lambda: transformers.BertModel._from_config(
            transformers.BertConfig.from_pretrained(folder), **sdpa
        ),
        "pipeline": lambda: transformers.pipeline("text-classification", model=folder),
        "pipeline, sdpa": lambda: transformers.pipeline("text-classification", model=folder, model_kwargs=sdpa),
        "tokenizer": lambda: transformers.AutoTokenizer.from_pretrained(folder),
    }
    try:
        import sentence_transformers
    except ImportError:
        pass
    else:
        ways["SentenceTransformer, sdpa"] = lambda: sentence_transformers.SentenceTransformer(
            folder, model_kwargs=sdpa, device="cpu"
        )
        ways["CrossEncoder, sdpa"] = lambda: sentence_transformers.CrossEncoder(folder, model_kwargs=sdpa, device="cpu")
    said = {}
    for name, load in ways.items():
        try:
            load()
            said[name] = None
        except Exception as error:
            said[name] = str(error)
    assert "alignattn" not in sys.modules
    print(json.dumps(said))


for each in sys.argv[1:]:
    main(each)
