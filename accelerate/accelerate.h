#pragma once

// Everything a training program needs.
#include "accelerate/accelerator.h"
#include "accelerate/checkpoint/safetensors.h"
#include "accelerate/core/error.h"
#include "accelerate/core/version.h"
#include "accelerate/data/data_loader.h"
#include "accelerate/data/item_dataset.h"
#include "accelerate/data/iterable_dataset.h"
#include "accelerate/data/load_ahead.h"
#include "accelerate/data/shared_memory_dataset.h"
#include "accelerate/data/shared_record_dataset.h"
#include "accelerate/data/sources/sources.h"
#include "accelerate/memory.h"
#include "accelerate/optim/local_sgd.h"
#include "accelerate/optim/lr_schedules.h"
#include "accelerate/seed.h"
#include "accelerate/strategy/sync_batchnorm.h"
