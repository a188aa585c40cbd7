#pragma once

#include <string>
#include <vector>

#include "accelerate/core/file_system.h"

namespace accelerate {

/// Note "What a save that died leaves behind"
///
/// A save of NAME makes NAME.draft-<random>, fills it, syncs everything, writes and syncs the manifest, and
/// only then gives it the name. So NAME itself is complete from its first moment on, and a draft with a sound
/// manifest is complete too. Where NAME exists already, the two names are exchanged atomically, and the
/// draft's name then stands for the old checkpoint; without exchange the old one goes to NAME.old-<random>
/// first, and for one moment NAME is not there while both are complete. Rotation first renames to
/// NAME.removing-<random> and then deletes, so that a checkpoint is never half there under its own name.
///
/// From this follows what is done with what is found, for each NAME whose drafts nobody writes any more:
///   removing               delete it
///   NAME is complete       delete drafts and old ones: they are older, or were never committed
///   NAME is missing or     give the name to the newest complete draft, else to the newest complete old one;
///   damaged                the damaged one goes by way of NAME.removing. An incomplete old one gets its name
///                          back where there is nothing better, so that nobody's data is deleted unseen
/// and incomplete drafts are deleted.

/// What recover_folder() did and left; paths below the folder.
struct RecoveryReport {
  std::vector<std::string> removed;
  std::vector<std::string> restored;    ///< checkpoints that got their name (back), by that name
  std::vector<std::string> left_alone;  ///< with the reason: "checkpoint_3.draft-...: another process is ..."
};

/// Finishes or undoes what saves and removals that died left in `folder`, as the note above says. Touches
/// nothing but names that parse_leftover() knows, and no draft that a live process writes. A crash in the
/// middle of it is no harm: the next one goes on. Called by every save and before a run resumes; a folder
/// that does not exist is fine. Local.
/// @throws CheckpointError as FileSystem does.
RecoveryReport recover_folder(FileSystem& files, const std::string& folder);

/// Takes a checkpoint out of its folder: renames it to NAME.removing-<random>, syncs, deletes. Once this has
/// renamed, a crash leaves work for recover_folder() and no half checkpoint.
/// @throws CheckpointError as FileSystem does.
void remove_checkpoint(FileSystem& files, const std::string& path);

}  // namespace accelerate
