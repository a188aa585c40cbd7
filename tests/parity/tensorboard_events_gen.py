"""Writes tensorboard_events.json: events as Python's own writers make them, for tests/trackers.

    python3 tensorboard_events_gen.py > tensorboard_events.json

Needs torch, tensorboard and numpy. The histogram is torch.utils.tensorboard's, with its bins."""
import json
import struct

import numpy as np
from google.protobuf import struct_pb2
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.plugins.hparams import plugin_data_pb2
from torch.utils.tensorboard import summary as torch_summary

WALL, STEP = 1764495301.25, 7


def record(event):
    data = event.SerializeToString(deterministic=True)
    head = struct.pack("<Q", len(data))
    out = head + struct.pack("<I", masked_crc32c(head)) + data + struct.pack("<I", masked_crc32c(data))
    return out.hex()


def event(value, step=STEP):
    return event_pb2.Event(wall_time=WALL, step=step, summary=summary_pb2.Summary(value=[value]))


def hparams(tag, content):
    metadata = summary_pb2.SummaryMetadata(
        plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="hparams", content=content.SerializeToString()))
    return event(summary_pb2.Summary.Value(tag=tag, metadata=metadata), 0)


def default_bins():
    bins, v = [], 1e-12
    while v < 1e20:
        bins.append(v)
        v *= 1.1
    return [-b for b in bins[::-1]] + [0] + bins


text = summary_pb2.Summary.Value(
    tag="notes",
    metadata=summary_pb2.SummaryMetadata(
        plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="text")),
    tensor=tensor_pb2.TensorProto(
        dtype=types_pb2.DT_STRING, string_val=["größer than <b>".encode()],
        tensor_shape=tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])))
image = summary_pb2.Summary.Value(
    tag="picture", image=summary_pb2.Summary.Image(height=2, width=3, colorspace=1, encoded_image_string=b"\x89PNG"))
start = plugin_data_pb2.HParamsPluginData(session_start_info=plugin_data_pb2.SessionStartInfo(
    hparams={"lr": struct_pb2.Value(number_value=0.125)}, group_name="run-1", start_time_secs=WALL))
end = plugin_data_pb2.HParamsPluginData(session_end_info=plugin_data_pb2.SessionEndInfo(
    status=1, end_time_secs=WALL))  # STATUS_SUCCESS

histograms = []
rng = np.random.default_rng(3)
for values in ([0.5], [0.0, 0.0, -1.0, 1.0], [1e-13, 3e19, -2e5], list(rng.normal(size=50)), [5.0] * 9):
    values = np.asarray(values, dtype=np.float32).astype(np.float64)
    histo = torch_summary.make_histogram(values, default_bins())
    histograms.append({
        "values": values.tolist(), "min": histo.min, "max": histo.max, "num": histo.num, "sum": histo.sum,
        "sum_squares": histo.sum_squares, "limits": list(histo.bucket_limit), "counts": list(histo.bucket)})

print(json.dumps({
    "wall_time": WALL,
    "step": STEP,
    "version": record(event_pb2.Event(wall_time=WALL, file_version="brain.Event:2")),
    "scalar": record(event(summary_pb2.Summary.Value(tag="loss", simple_value=0.1))),
    "scalar_nan": record(event(summary_pb2.Summary.Value(tag="loss", simple_value=float("nan")), -1)),
    "text": record(event(text)),
    "image": record(event(image)),
    "session_start": record(hparams("_hparams_/session_start_info", start)),
    "session_end": record(hparams("_hparams_/session_end_info", end)),
    "histograms": histograms,
}, separators=(",", ":")))
