#pragma once

#include <memory>

#include "accelerate/tracking/trackers/record_file.h"
#include "accelerate/tracking/trackers/tracker.h"

namespace accelerate {

/// Event files in `logging_dir/project`, which `tensorboard --logdir logging_dir` shows: numbers as scalars,
/// texts, histograms, pictures, and the configuration under HPARAMS. Numbers are stored as float32, as
/// TensorBoard does. Options (init_kwargs): `flush_secs` (2), `main_process_only` (true), and `run_folders`
/// (false; true: each run in a folder of its own, `logging_dir/project/RUN`, so that TensorBoard tells them
/// apart).
class TensorBoardTracker final : public Tracker, public MediaTracker {
 public:
  explicit TensorBoardTracker(bool main_process_only = true) : main_process_only_(main_process_only) {}

  std::string name() const override { return "tensorboard"; }
  bool main_process_only() const override { return main_process_only_; }
  bool requires_logging_directory() const override { return true; }
  void start(const TrackerContext& context) override;
  void store_init_configuration(const TrackedValues& values) override;
  void log(const TrackedValues& values, std::optional<int64_t> step) override;
  void log_text(const std::string& name, const std::string& text, std::optional<int64_t> step) override;
  void log_histogram(const std::string& name, std::span<const float> values,
                     std::optional<int64_t> step) override;
  void log_image(const std::string& name, const ImageView& image, std::optional<int64_t> step) override;
  void finish(RunStatus status) override;

 private:
  void put(const std::string& event);

  bool main_process_only_;
  std::unique_ptr<RecordFile> file_;
  std::string run_name_;
  bool has_session_ = false;
  int64_t next_step_ = 0;
};

}  // namespace accelerate
