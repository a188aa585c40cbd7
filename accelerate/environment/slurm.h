#pragma once

#include <string>
#include <string_view>

// Slurm's compressed texts, on their own for tests. Internal to this folder.

namespace accelerate::detail {

/// First host of a Slurm host list: "node[07-09,12],gpu1" gives "node07", "rack[1-2]n[3,5]" gives "rack1n3".
std::string first_slurm_host(std::string_view list);

/// Tasks on machine number `node` by a text such as "2(x3),1"; 0 where the text says nothing about it.
int slurm_tasks_on_node(std::string_view tasks_per_node, int node);

}  // namespace accelerate::detail
