#!/usr/bin/env bash
# The real TensorBoard's own reader reads what our tracker wrote.
# Needs ACCELERATE_BUILD_DIR (a build with tests) and ACCELERATE_PYTHON_VENV (an environment with tensorboard).
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
"$ACCELERATE_BUILD_DIR/bin/tracker_script" log "$work" tensorboard 100

"$ACCELERATE_PYTHON_VENV/bin/python3" - "$work/script" <<'PY'
import struct, sys, zlib
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
loss = events.Scalars("loss")
assert [e.step for e in loss] == list(range(100)), loss
assert all(e.value == struct.unpack("f", struct.pack("f", 1 / (e.step + 1)))[0] for e in loss)

[weights] = events.Histograms("weights")
histogram = weights.histogram_value
assert (weights.step, histogram.min, histogram.max, histogram.num, histogram.sum) == (5, -1, 2, 4, 1.5)

[picture] = events.Images("picture")
assert (picture.step, picture.width, picture.height) == (6, 3, 2)
png = picture.encoded_image_string
assert png[:8] == b"\x89PNG\r\n\x1a\n"
start = png.index(b"IDAT")
size = struct.unpack(">I", png[start - 4:start])[0]
assert zlib.decompress(png[start + 4:start + 4 + size]) == bytes([0, 0, 255, 255, 0, 0, 128, 64])

[notes] = events.Tensors("notes")
assert notes.tensor_proto.string_val[0].decode() == "größer than <b>"
assert events.SummaryMetadata("notes").plugin_data.plugin_name == "text"

def hparams(tag):
    content = events.SummaryMetadata(tag).plugin_data.content
    return plugin_data_pb2.HParamsPluginData.FromString(content)

start = hparams("_hparams_/session_start_info").session_start_info
assert {k: getattr(v, v.WhichOneof("kind")) for k, v in start.hparams.items()} == {
    "lr": 0.125, "optimizer": "adamw", "nesterov": True, "layers": 3.0}
assert hparams("_hparams_/session_end_info").session_end_info.status == 1
print("tensorboard read", len(loss), "scalars, a histogram, a picture, a text and the hyperparameters")
PY
