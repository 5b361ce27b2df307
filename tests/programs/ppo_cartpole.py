# requires: torch
# simulate: --gpu rtx4060
# sizes: by values
"""Trains a policy by PPO in environments on the device: episodes end by values, and the divergence ends an update early."""

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

WORLDS, HORIZON = 16, 64


class Poles:
    """Carts with poles, all on the device. One starts again when its pole falls."""

    def __init__(self) -> None:
        self.state = torch.empty(WORLDS, 4, device="cuda").uniform_(-0.05, 0.05)
        self.age = torch.zeros(WORLDS, dtype=torch.int64, device="cuda")
        self.lengths: list[int] = []

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, v, angle, turn = self.state.unbind(1)
        force = torch.where(action == 1, 10.0, -10.0)
        sin, cos = angle.sin(), angle.cos()
        push = (force + 0.05 * turn**2 * sin) / 1.1
        spin = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        speed = push - 0.05 * spin * cos / 1.1
        self.state = self.state + 0.02 * torch.stack([v, speed, turn, spin], 1)
        self.age += 1
        fallen = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 0.21) | (self.age >= 200)
        if fallen.any():
            self.lengths += self.age[fallen].tolist()
            self.state[fallen] = torch.empty(int(fallen.sum()), 4, device="cuda").uniform_(-0.05, 0.05)
            self.age[fallen] = 0
        return self.state.clone(), torch.ones(WORLDS, device="cuda"), fallen


def returns(rewards: Tensor, values: Tensor, ends: Tensor, last: Tensor) -> Tensor:
    advantages, running = torch.zeros_like(rewards), torch.zeros(WORLDS, device="cuda")
    for t in reversed(range(HORIZON)):
        following = last if t == HORIZON - 1 else values[t + 1]
        alive = (~ends[t]).float()
        running = rewards[t] + 0.99 * following * alive - values[t] + 0.99 * 0.95 * alive * running
        advantages[t] = running
    return advantages


def main() -> None:
    torch.manual_seed(0)
    actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2)).cuda()
    critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1)).cuda()
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], 3e-3)
    poles, state, updates = Poles(), None, 0
    state = poles.state
    for _ in range(2):
        memory = []
        with torch.no_grad():
            for _ in range(HORIZON):
                choice = Categorical(logits=actor(state))
                action = choice.sample()
                assert 0 <= int(action.min()) and int(action.max()) <= 1
                following, reward, ended = poles.step(action)
                memory.append((state, action, choice.log_prob(action), critic(state)[:, 0], reward, ended))
                state = following
            states, actions, chances, values, rewards, ends = (torch.stack(one) for one in zip(*memory))
            advantages = returns(rewards, values, ends, critic(state)[:, 0])
            targets = advantages + values
        for _ in range(3):
            for rows in torch.randperm(HORIZON * WORLDS, device="cuda").split(256):
                choice = Categorical(logits=actor(states.flatten(0, 1)[rows]))
                ratio = (choice.log_prob(actions.flatten()[rows]) - chances.flatten()[rows]).exp()
                gain = advantages.flatten()[rows]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                policy = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                value = (critic(states.flatten(0, 1)[rows])[:, 0] - targets.flatten()[rows]).pow(2).mean()
                loss = policy + 0.5 * value - 0.01 * choice.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5, error_if_nonfinite=True)
                optimizer.step()
                updates += 1
            divergence = ((ratio - 1) - ratio.log()).mean()
            if divergence.item() > 0.2:
                break
    assert updates % 4 == 0 and 8 <= updates <= 24, updates
    assert poles.lengths and all(8 <= one <= 200 for one in poles.lengths), poles.lengths
    print(f"{updates} updates, {len(poles.lengths)} episodes of {min(poles.lengths)} to {max(poles.lengths)}")


main()
