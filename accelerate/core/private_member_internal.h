#pragma once

// Note [Private members]
// A few of LibTorch's classes hold state that has to go into a checkpoint and that no member function gives.
// The standard lets an explicit instantiation name private members, so a pointer to one can be had without
// any change to the class:
//
//   namespace accelerate::detail {  // the friend's namespace has to be PrivateMember's
//   struct Best { using Type = float Scheduler::*; friend Type private_member(Best); };
//   template struct PrivateMember<Best, &Scheduler::best>;
//   }
//   ... scheduler.*private_member(Best{}) ...
//
// A member that is renamed or that gets another type in a later LibTorch does not compile; nothing goes wrong
// silently. Only .cpp files use this.
namespace accelerate::detail {

template <class Tag, typename Tag::Type kMember>
struct PrivateMember {
  friend typename Tag::Type private_member(Tag) { return kMember; }
};

}  // namespace accelerate::detail
