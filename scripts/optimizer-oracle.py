#!/usr/bin/env python3
"""What PyTorch's optimizers make of random gradients: writes tests/data/optimizers.jsonl to its standard output.

Needs torch (the data were made with 2.15.0, on a CPU, in double precision):
    python3 scripts/optimizer-oracle.py > tests/data/optimizers.jsonl
"""
import torch, json
torch.set_default_dtype(torch.float64)
cases = [
 ("sgd", torch.optim.SGD, dict(lr=0.1)),
 ("sgd", torch.optim.SGD, dict(lr=0.1, weight_decay=0.05)),
 ("sgd", torch.optim.SGD, dict(lr=0.1, momentum=0.9)),
 ("sgd", torch.optim.SGD, dict(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01)),
 ("sgd", torch.optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True)),
 ("sgd", torch.optim.SGD, dict(lr=0.1, momentum=0.5, nesterov=True, weight_decay=0.1, maximize=True)),
 ("adagrad", torch.optim.Adagrad, dict(lr=0.1)),
 ("adagrad", torch.optim.Adagrad, dict(lr=0.1, lr_decay=0.01, weight_decay=0.05, initial_accumulator_value=0.1, eps=1e-8)),
 ("adam", torch.optim.Adam, dict(lr=0.01)),
 ("adam", torch.optim.Adam, dict(lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)),
 ("adam", torch.optim.Adam, dict(lr=0.01, amsgrad=True)),
 ("adamw", torch.optim.AdamW, dict(lr=0.01)),
 ("adamw", torch.optim.AdamW, dict(lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.2, amsgrad=True)),
 ("rmsprop", torch.optim.RMSprop, dict(lr=0.01)),
 ("rmsprop", torch.optim.RMSprop, dict(lr=0.01, alpha=0.9, eps=1e-6, weight_decay=0.1, momentum=0.8)),
 ("rmsprop", torch.optim.RMSprop, dict(lr=0.01, centered=True, momentum=0.5)),
]
g = torch.Generator().manual_seed(2026)
for name, cls, kw in cases:
    p = torch.randn(5, generator=g)
    start = p.tolist()
    p = torch.nn.Parameter(p)
    opt = cls([p], **kw)
    grads, values = [], []
    for step in range(6):
        gr = torch.randn(5, generator=g) * (1.0 if step != 3 else 10.0)
        if step == 4: gr = torch.zeros(5)
        grads.append(gr.tolist())
        p.grad = gr.clone()
        opt.step()
        values.append(p.detach().tolist())
    if "betas" in kw: kw = {**kw, "beta1": kw["betas"][0], "beta2": kw["betas"][1]}; del kw["betas"]
    print(json.dumps(dict(optimizer=name, settings=kw, start=start, gradients=grads, values=values)))
